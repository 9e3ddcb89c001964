-- What makes an append safe to repeat. Neither the key nor the words are kept, only keyed digests of them: without the
-- namespace's secret they can be neither read nor guessed at.

INSERT INTO {schema}.settings (name, value)
VALUES ('digest_key', replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''))
ON CONFLICT (name) DO NOTHING;

CREATE TABLE {schema}.turn_idempotency (
    key_digest     bytea       NOT NULL,
    content_digest bytea,
    observation_id bigint      NOT NULL,
    log_offset     bigint      NOT NULL,
    erased_at      timestamptz,
    CONSTRAINT turn_idempotency_pkey PRIMARY KEY (key_digest),
    CONSTRAINT turn_idempotency_tombstone_chk CHECK ((erased_at IS NULL) = (content_digest IS NOT NULL))
);
CREATE INDEX turn_idempotency_observation_idx ON {schema}.turn_idempotency (observation_id);
COMMENT ON TABLE {schema}.turn_idempotency IS
    'One row per idempotency key (key_digest covers scope and key). When its turn is erased the digest of the words '
    'goes and the row stays as a tombstone: a retry that comes late must not bring erased words back.';

ALTER TABLE {schema}.turn_idempotency
    ALTER COLUMN key_digest SET STATISTICS 0,
    ALTER COLUMN content_digest SET STATISTICS 0;
