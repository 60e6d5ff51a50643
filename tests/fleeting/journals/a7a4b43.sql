-- A journal that commit a7a4b43 took over from 305ac4c, and wrote on: it knows of leases that expire.
BEGIN TRANSACTION;
CREATE TABLE managed (identity TEXT PRIMARY KEY) WITHOUT ROWID;
INSERT INTO "managed" VALUES('demo://group');
CREATE TABLE owner (epoch INTEGER NOT NULL, name TEXT NOT NULL);
INSERT INTO "owner" VALUES(2,'manager-of-a7a4b43');
CREATE TABLE record (
            kind TEXT, key TEXT, epoch INTEGER NOT NULL, data TEXT NOT NULL, PRIMARY KEY (kind, key)
        ) WITHOUT ROWID
        ;
INSERT INTO "record" VALUES('cordon','default/i-6',1,'["a bad disk"]');
INSERT INTO "record" VALUES('dirty','default/i-1/0',1,'["default/i-1", 0, "job-1"]');
INSERT INTO "record" VALUES('expired','job-0',2,'["default/i-1", 1, 1790000015.0]');
INSERT INTO "record" VALUES('instance','default/i-1',1,'{"pool": "default", "origin": "requested", "intent": "0123456789-1", "first_seen": 1790000010.0, "removing": "", "retained": null, "asleep": "", "asleep_since": null}');
INSERT INTO "record" VALUES('instance','default/i-2',1,'{"pool": "default", "origin": "requested", "intent": "0123456789-1", "first_seen": 1790000010.0, "removing": "", "retained": null, "asleep": "all leases on it sleep", "asleep_since": 1790000030.0}');
INSERT INTO "record" VALUES('instance','default/i-3',1,'{"pool": "default", "origin": "requested", "intent": "0123456789-1", "first_seen": 1790000010.0, "removing": "", "retained": null, "asleep": "not needed for now", "asleep_since": 1790000041.0}');
INSERT INTO "record" VALUES('instance','default/i-4',1,'{"pool": "default", "origin": "requested", "intent": "0123456789-1", "first_seen": 1790000010.0, "removing": "not needed", "retained": "to look at it", "asleep": "", "asleep_since": null}');
INSERT INTO "record" VALUES('instance','default/i-5',1,'{"pool": "default", "origin": "requested", "intent": "0123456789-1", "first_seen": 1790000010.0, "removing": "used up", "retained": null, "asleep": "", "asleep_since": null}');
INSERT INTO "record" VALUES('instance','default/i-6',1,'{"pool": "default", "origin": "requested", "intent": "0123456789-1", "first_seen": 1790000010.0, "removing": "", "retained": null, "asleep": "", "asleep_since": null}');
INSERT INTO "record" VALUES('intent','default/0123456789-2',1,'{"pool": "default", "count": 2, "accepted": 2, "matched": 0, "requested_at": 1790000044.0, "asked_at": 1790000045.0}');
INSERT INTO "record" VALUES('intent','default/0123456789-3',1,'{"pool": "default", "count": 3, "accepted": null, "matched": 0, "requested_at": 1790000046.0, "asked_at": 1790000047.0}');
INSERT INTO "record" VALUES('intent','default/0123456789-4',1,'{"pool": "default", "count": 1, "accepted": null, "matched": 0, "requested_at": 1790000070.0, "asked_at": 1790000070.0}');
INSERT INTO "record" VALUES('lease','job-1',1,'["default/i-1", 0, 1790000012.0, false, null]');
INSERT INTO "record" VALUES('lease','job-2',1,'["default/i-2", 0, 1790000012.0, true, null]');
INSERT INTO "record" VALUES('lease','job-3',2,'["default/i-2", 1, 1790000020.0, true, 1790003620.0]');
INSERT INTO "record" VALUES('lease','job-4',2,'["default/i-3", 0, 1790000021.0, false, null]');
INSERT INTO "record" VALUES('lost','default/i-0',1,'{"pool": "default", "until": 1790003621.0}');
INSERT INTO "record" VALUES('uses','default/i-1',1,'[3]');
INSERT INTO "record" VALUES('uses','default/i-2',1,'[1]');
COMMIT;
PRAGMA user_version = 2;
