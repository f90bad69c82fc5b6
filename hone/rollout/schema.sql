-- One row per rollout. Every rollout is dispatched once, ends once and is disposed of once; the triggers
-- turn a second time, a deletion or a changed origin into an error.

CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
INSERT INTO meta VALUES ('format', 'hone-ledger-2'), ('dispatched', '0');

CREATE TABLE steps (step INTEGER PRIMARY KEY, committed_at REAL NOT NULL) STRICT;

CREATE TABLE rollouts (
    rollout_id    TEXT PRIMARY KEY,
    group_id      TEXT NOT NULL,
    place         INTEGER NOT NULL CHECK (place >= 0),      -- index in the group
    position      INTEGER NOT NULL CHECK (position >= 0),   -- of the group in the order of tasks
    task_id       TEXT NOT NULL,
    sampled_version INTEGER NOT NULL,                       -- weights in use at dispatch: the oldest that sampled it
    dispatched_at REAL NOT NULL,                            -- Unix time, s
    ended_at      REAL,
    outcome       TEXT CHECK (outcome IN (@OUTCOMES)),
    reward        REAL,
    directory     TEXT,                                     -- name below rollouts/; NULL: nothing was stored
    disposition   TEXT CHECK (disposition IN ('trained', 'masked', 'dropped')),
    reason        TEXT,
    step          INTEGER,                                  -- the training step that consumed it
    CHECK ((outcome IS NULL) = (ended_at IS NULL)),
    CHECK (disposition IS NULL OR outcome IS NOT NULL),
    CHECK ((reason IS NOT NULL) = (disposition IS 'dropped')),
    CHECK (disposition IS NULL OR disposition = 'dropped' OR step IS NOT NULL),
    CHECK (step IS NULL OR sampled_version <= step),
    CHECK (outcome IS NULL OR (reward IS NULL) = (outcome IN (@INFRASTRUCTURE))),
    CHECK (disposition IS NULL OR disposition = 'dropped' OR outcome NOT IN (@INFRASTRUCTURE)),
    CHECK (disposition IS NULL OR disposition = 'dropped' OR directory IS NOT NULL)
) STRICT;
CREATE INDEX rollouts_by_step ON rollouts (step) WHERE step IS NOT NULL;
CREATE INDEX rollouts_by_group ON rollouts (group_id);
CREATE INDEX rollouts_undisposed ON rollouts (group_id) WHERE disposition IS NULL;

-- Tasks whose rollouts met only infrastructure faults, each time that one was set aside.
CREATE TABLE set_aside (
    task_id  TEXT NOT NULL,
    group_id TEXT NOT NULL,                                 -- the group that it could not fill
    until    INTEGER NOT NULL,                              -- position from which the task is tried again
    reason   TEXT NOT NULL,
    at       REAL NOT NULL                                  -- Unix time, s
) STRICT;

-- Counted apart from the rows, so that a lost row shows in the balance.
CREATE TRIGGER dispatched AFTER INSERT ON rollouts BEGIN
    UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE key = 'dispatched';
END;

CREATE TRIGGER dispatched_clean BEFORE INSERT ON rollouts
WHEN NEW.outcome IS NOT NULL OR NEW.disposition IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a rollout is dispatched before it ends'); END;

CREATE TRIGGER dispatched_for_open_group BEFORE INSERT ON rollouts
WHEN EXISTS (SELECT 1 FROM rollouts WHERE group_id = NEW.group_id AND step IS NOT NULL)
BEGIN SELECT RAISE(ABORT, 'a step has already consumed its group'); END;

CREATE TRIGGER never_deleted BEFORE DELETE ON rollouts
BEGIN SELECT RAISE(ABORT, 'a rollout is never deleted'); END;

CREATE TRIGGER origin_fixed BEFORE UPDATE OF
    rollout_id, group_id, place, position, task_id, sampled_version, dispatched_at ON rollouts
BEGIN SELECT RAISE(ABORT, 'the origin of a rollout is fixed'); END;

CREATE TRIGGER ends_once BEFORE UPDATE OF ended_at, outcome, reward, directory ON rollouts
WHEN OLD.outcome IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'it has already ended'); END;

-- Only taking back an uncommitted step (ledger.rollback) may clear a disposition, and only one that a commit set.
CREATE TRIGGER disposed_once BEFORE UPDATE OF disposition, reason, step ON rollouts
WHEN OLD.disposition IS NOT NULL AND (
    OLD.step IS NULL
    OR NEW.disposition IS NOT NULL
    OR EXISTS (SELECT 1 FROM steps WHERE step = OLD.step)
)
BEGIN SELECT RAISE(ABORT, 'it has already been disposed of'); END;
