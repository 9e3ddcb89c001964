-- The language of a turn, by which its memories are found whatever the ending of a word: Postgres's text search
-- configuration of that language where there is one, else `simple`, which compares words as they stand.
--
-- The words of a memory were a generated column, whose expression names one configuration for all rows. Now a trigger finds
-- them, row by row. What is stored stays as it is: no row is rewritten, and a release that knows of no language inserts as
-- before.

ALTER TABLE {schema}.observation ADD COLUMN language text;
ALTER TABLE {schema}.observation ALTER COLUMN language SET STATISTICS 0;
COMMENT ON COLUMN {schema}.observation.language IS
    'A language tag or the name of a configuration, as the turn''s source tells it; null where it does not.';

ALTER TABLE {schema}.memory ADD COLUMN language text;
ALTER TABLE {schema}.memory ALTER COLUMN language SET STATISTICS 0;
-- Whoever inserts as before finds the trigger below in its place, from the same transaction on.
-- squawk-ignore ban-drop-generated-expression
ALTER TABLE {schema}.memory ALTER COLUMN search DROP EXPRESSION;
COMMENT ON COLUMN {schema}.memory.language IS 'That of the turn, from which the trigger takes the configuration.';

CREATE TABLE {schema}.scope_language (
    scope         text NOT NULL,
    configuration text NOT NULL,
    CONSTRAINT scope_language_pkey PRIMARY KEY (scope, configuration)
);
COMMENT ON TABLE {schema}.scope_language IS
    'Which configurations a scope has memories of, beside `simple`: a query is made with each of them. Kept, so that asking '
    'costs the same for any number of memories. A row stays when the last memory of its language is erased, and goes when '
    'the scope is dropped.';

-- By name and not as regconfig in a column, which pg_upgrade refuses.
CREATE FUNCTION {schema}.search_configuration(language text) RETURNS regconfig
LANGUAGE sql STABLE PARALLEL SAFE
AS $function$
    SELECT coalesce(
        (SELECT c.oid::pg_catalog.regconfig
           FROM pg_catalog.pg_ts_config AS c
          WHERE c.cfgnamespace = 'pg_catalog'::pg_catalog.regnamespace
            AND c.cfgname = CASE pg_catalog.split_part(language, '-', 1)
                WHEN 'ar' THEN 'arabic'
                WHEN 'hy' THEN 'armenian'
                WHEN 'eu' THEN 'basque'
                WHEN 'ca' THEN 'catalan'
                WHEN 'da' THEN 'danish'
                WHEN 'nl' THEN 'dutch'
                WHEN 'en' THEN 'english'
                WHEN 'et' THEN 'estonian'
                WHEN 'fi' THEN 'finnish'
                WHEN 'fr' THEN 'french'
                WHEN 'de' THEN 'german'
                WHEN 'el' THEN 'greek'
                WHEN 'hi' THEN 'hindi'
                WHEN 'hu' THEN 'hungarian'
                WHEN 'id' THEN 'indonesian'
                WHEN 'ga' THEN 'irish'
                WHEN 'it' THEN 'italian'
                WHEN 'lt' THEN 'lithuanian'
                WHEN 'ne' THEN 'nepali'
                WHEN 'nb' THEN 'norwegian'
                WHEN 'nn' THEN 'norwegian'
                WHEN 'no' THEN 'norwegian'
                WHEN 'pt' THEN 'portuguese'
                WHEN 'ro' THEN 'romanian'
                WHEN 'ru' THEN 'russian'
                WHEN 'sr' THEN 'serbian'
                WHEN 'es' THEN 'spanish'
                WHEN 'sv' THEN 'swedish'
                WHEN 'ta' THEN 'tamil'
                WHEN 'tr' THEN 'turkish'
                WHEN 'yi' THEN 'yiddish'
                ELSE language
            END),
        'pg_catalog.simple'::pg_catalog.regconfig
    )
$function$;
COMMENT ON FUNCTION {schema}.search_configuration(text) IS
    'The configuration of a language tag (de, pt-br) or of a name (german), if this server has it; else simple.';

CREATE FUNCTION {schema}.find_words() RETURNS trigger
LANGUAGE plpgsql
AS $function$
DECLARE
    v_configuration regconfig := {schema}.search_configuration(NEW.language);
BEGIN
    NEW.search := to_tsvector(v_configuration, coalesce(NEW.search_text, NEW.text))
        || array_to_tsvector(ARRAY[chr(1) || NEW.scope]);
    IF v_configuration <> 'pg_catalog.simple'::regconfig THEN
        INSERT INTO {schema}.scope_language (scope, configuration)
        SELECT NEW.scope, c.cfgname FROM pg_catalog.pg_ts_config AS c WHERE c.oid = v_configuration
            ON CONFLICT DO NOTHING;
    END IF;
    RETURN NEW;
END
$function$;
COMMENT ON FUNCTION {schema}.find_words() IS
    'Finds the words of a memory in its language and adds its scope as one more; notes the configuration for the scope.';

CREATE TRIGGER memory_find_words BEFORE INSERT OR UPDATE OF scope, text, search_text, language ON {schema}.memory
    FOR EACH ROW EXECUTE FUNCTION {schema}.find_words();
