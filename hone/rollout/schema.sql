-- One row per rollout. Every rollout is dispatched once, ends once and is disposed of once; the triggers
-- turn a second time, a deletion or a changed origin into an error.

CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
INSERT INTO meta VALUES ('format', 'hone-ledger-1'), ('dispatched', '0');

CREATE TABLE steps (step INTEGER PRIMARY KEY, committed_at REAL NOT NULL) STRICT;

CREATE TABLE rollouts (
    rollout_id    TEXT PRIMARY KEY,
    group_id      TEXT NOT NULL,
    place         INTEGER NOT NULL CHECK (place >= 0),      -- index in the group
    task_id       TEXT NOT NULL,
    step          INTEGER NOT NULL CHECK (step >= 0),       -- the training step it was dispatched for
    version       INTEGER NOT NULL,                         -- weights in use at dispatch
    dispatched_at REAL NOT NULL,                            -- Unix time, s
    ended_at      REAL,
    outcome       TEXT CHECK (outcome IN (@OUTCOMES)),
    reward        REAL,
    directory     TEXT,                                     -- name below rollouts/; NULL: nothing was stored
    disposition   TEXT CHECK (disposition IN ('trained', 'masked', 'dropped')),
    reason        TEXT,
    trained_step  INTEGER,                                  -- the step whose commit disposed of it
    CHECK ((outcome IS NULL) = (ended_at IS NULL)),
    CHECK (disposition IS NULL OR outcome IS NOT NULL),
    CHECK ((reason IS NOT NULL) = (disposition IS 'dropped')),
    CHECK (disposition IS NULL OR disposition = 'dropped' OR trained_step IS NOT NULL),
    CHECK (outcome IS NULL OR (reward IS NULL) = (outcome IN (@INFRASTRUCTURE))),
    CHECK (disposition IS NULL OR disposition = 'dropped' OR outcome NOT IN (@INFRASTRUCTURE)),
    CHECK (disposition IS NULL OR disposition = 'dropped' OR directory IS NOT NULL)
) STRICT;
CREATE INDEX rollouts_by_step ON rollouts (step, group_id, place);
CREATE INDEX rollouts_undisposed ON rollouts (step) WHERE disposition IS NULL;

-- Counted apart from the rows, so that a lost row shows in the balance.
CREATE TRIGGER dispatched AFTER INSERT ON rollouts BEGIN
    UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE key = 'dispatched';
END;

CREATE TRIGGER dispatched_clean BEFORE INSERT ON rollouts
WHEN NEW.outcome IS NOT NULL OR NEW.disposition IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a rollout is dispatched before it ends'); END;

CREATE TRIGGER dispatched_for_open_step BEFORE INSERT ON rollouts
WHEN EXISTS (SELECT 1 FROM steps WHERE step = NEW.step)
BEGIN SELECT RAISE(ABORT, 'its step is already committed'); END;

CREATE TRIGGER never_deleted BEFORE DELETE ON rollouts
BEGIN SELECT RAISE(ABORT, 'a rollout is never deleted'); END;

CREATE TRIGGER origin_fixed BEFORE UPDATE OF
    rollout_id, group_id, place, task_id, step, version, dispatched_at ON rollouts
BEGIN SELECT RAISE(ABORT, 'the origin of a rollout is fixed'); END;

CREATE TRIGGER ends_once BEFORE UPDATE OF ended_at, outcome, reward, directory ON rollouts
WHEN OLD.outcome IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'it has already ended'); END;

-- Only taking back an uncommitted step (ledger.rollback) may clear a disposition, and only one that a commit set.
CREATE TRIGGER disposed_once BEFORE UPDATE OF disposition, reason, trained_step ON rollouts
WHEN OLD.disposition IS NOT NULL AND (
    OLD.trained_step IS NULL
    OR NEW.disposition IS NOT NULL
    OR EXISTS (SELECT 1 FROM steps WHERE step = OLD.trained_step)
)
BEGIN SELECT RAISE(ABORT, 'it has already been disposed of'); END;
