-- Outage or turn?
--
-- A class of error cannot tell. A gateway may answer one turn's text with "forbidden" for ever, and an outage may look
-- like refusals or like silence. So the provider is asked with a canary, a turn without content, and what it answers is
-- kept here, where all workers see it: while a circuit is open nobody tries a turn, and one worker at a time asks again.
--
-- An attempt is spent when its turn is claimed, long before anybody knows whose fault the failure is. Each turn therefore
-- says how many of its attempts belong to failures that nothing has answered yet, and of which circuit. A canary that
-- fails gives these back and no others.

CREATE TABLE {schema}.formation_circuit (
    circuit_id        bigint  GENERATED ALWAYS AS IDENTITY,
    extractor         text    NOT NULL,
    extractor_version text    NOT NULL,
    identity          text    NOT NULL DEFAULT '',
    streak            bigint  NOT NULL DEFAULT 1,
    answered          bigint  NOT NULL DEFAULT 0,
    asked             bigint  NOT NULL DEFAULT 0,
    failing           integer NOT NULL DEFAULT 0,
    failed_at         timestamptz,
    opened_at         timestamptz,
    next_probe_at     timestamptz,
    closed_at         timestamptz,
    misses            integer NOT NULL DEFAULT 0,
    error_class       {schema}.formation_error_class,
    prober            uuid,
    probing_until     timestamptz,
    canaries          bigint  NOT NULL DEFAULT 0,
    CONSTRAINT formation_circuit_pkey PRIMARY KEY (circuit_id),
    CONSTRAINT formation_circuit_extractor_key UNIQUE (extractor, extractor_version, identity),
    CONSTRAINT formation_circuit_streaks_chk CHECK (answered < streak AND asked < streak),
    CONSTRAINT formation_circuit_open_chk CHECK ((opened_at IS NULL) = (next_probe_at IS NULL)),
    CONSTRAINT formation_circuit_prober_chk CHECK ((prober IS NULL) = (probing_until IS NULL))
) WITH (fillfactor = 50);
COMMENT ON TABLE {schema}.formation_circuit IS
    'One row per extractor, version and identity (e.g. its connection) that ever failed. Locked before any turn, and '
    'never together with watermark_formed. It holds no text of any error.';
COMMENT ON COLUMN {schema}.formation_circuit.streak IS
    'Number of the streak that failures belong to now. A success ends a streak, and so does a canary when it is sent.';
COMMENT ON COLUMN {schema}.formation_circuit.answered IS
    'Failures of this streak and of all before it are the turns'' own, or their attempts were given back.';
COMMENT ON COLUMN {schema}.formation_circuit.failing IS 'How many turns have failed in the current streak.';
COMMENT ON COLUMN {schema}.formation_circuit.opened_at IS
    'Since when the circuit is open: the provider does not answer its canary, and no turn is tried. Null: closed.';
COMMENT ON COLUMN {schema}.formation_circuit.next_probe_at IS 'From when on an open circuit lets one canary through.';
COMMENT ON COLUMN {schema}.formation_circuit.misses IS
    'How many canaries in a row have failed; the cool-down doubles with it.';
COMMENT ON COLUMN {schema}.formation_circuit.prober IS
    'Who has sent a canary. Until probing_until nobody else does; after that the prober is taken for dead.';

-- Constant defaults: no row is rewritten.
ALTER TABLE {schema}.observation
    ADD COLUMN streak_circuit  bigint,
    ADD COLUMN streak          bigint,
    ADD COLUMN streak_attempts integer NOT NULL DEFAULT 0;
COMMENT ON COLUMN {schema}.observation.streak_circuit IS
    'The circuit of the extractor that last failed at this turn; null when none has, or all was given back.';
COMMENT ON COLUMN {schema}.observation.streak IS 'The streak of that circuit to which its last failure belongs.';
COMMENT ON COLUMN {schema}.observation.streak_attempts IS
    'How many of formation_attempts are given back if the canary that answers this streak fails.';

-- What an opening circuit gives back. Turns that never failed have no entry here.
-- Made within the transaction, not concurrently: a failure must leave nothing behind, and the table is empty, since
-- every release has this migration.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX observation_streak_idx ON {schema}.observation (streak_circuit, streak)
    WHERE streak_circuit IS NOT NULL AND formed_at IS NULL AND parked_at IS NULL;
