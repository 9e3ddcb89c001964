-- The receipt of an erasure: what was asked for, what was deleted, what was left. It names nobody.

CREATE TABLE {schema}.erasure_request (
    request_id     uuid        NOT NULL DEFAULT gen_random_uuid(),
    requested_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason         text        NOT NULL,
    scope          text,
    subject_digest bytea,
    by_ids         boolean     NOT NULL,
    erased_at      timestamptz,
    deleted        jsonb,
    residual       jsonb,
    clean          boolean,
    CONSTRAINT erasure_request_pkey PRIMARY KEY (request_id),
    CONSTRAINT erasure_request_reason_chk CHECK (reason ~ '^[a-z][a-z0-9_]{0,63}$'),
    CONSTRAINT erasure_request_receipt_chk CHECK (
        (erased_at IS NULL) = (deleted IS NULL)
        AND (erased_at IS NULL) = (residual IS NULL)
        AND (erased_at IS NULL) = (clean IS NULL)
    )
);
COMMENT ON TABLE {schema}.erasure_request IS
    'One row per erasure. deleted and residual count rows by kind; both were counted by the same predicates, in the '
    'transaction that deleted. clean says that nothing was left.';
COMMENT ON COLUMN {schema}.erasure_request.subject_digest IS
    'A keyed digest: whoever knows the subject and holds the namespace''s secret can find the receipt; nobody can read '
    'the subject from it.';
ALTER TABLE {schema}.erasure_request ALTER COLUMN subject_digest SET STATISTICS 0;
