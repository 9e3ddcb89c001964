-- An erasure can be asked for first and carried out later, by somebody who is told nothing but the number of the request:
-- whoever approves it, and every record that a scheduler keeps of that, learns no more.
--
-- The row of the request is the receipt to be. Of a subject it has the keyed digest only, as a receipt has; which subject
-- that is, is found when the erasure is carried out, among those that there are.

-- No default: no row is rewritten.
ALTER TABLE {schema}.erasure_request ADD COLUMN observation_ids bigint[];
COMMENT ON COLUMN {schema}.erasure_request.observation_ids IS
    'The turns that a request names, until it has been carried out and nothing of them is left.';
COMMENT ON COLUMN {schema}.erasure_request.erased_at IS
    'When it was carried out, or tried last; null: requested and not carried out yet.';
