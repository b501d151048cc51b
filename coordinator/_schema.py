"""The ledger's tables."""

from __future__ import annotations

FORMAT = 1

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS rounds (
    round_id INTEGER PRIMARY KEY,
    phase TEXT NOT NULL CHECK (phase IN ('open', 'closing', 'committed')),
    size INTEGER NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    opened_s REAL NOT NULL,
    seconds REAL,
    state_file TEXT,
    state_sha256 TEXT,
    scores TEXT
) STRICT;

CREATE TABLE IF NOT EXISTS members (
    round_id INTEGER NOT NULL REFERENCES rounds,
    client_id TEXT NOT NULL,
    file TEXT,
    transfer_id TEXT,
    num_examples INTEGER,
    record TEXT,
    PRIMARY KEY (round_id, client_id)
) STRICT;

CREATE TABLE IF NOT EXISTS finals (
    round_id INTEGER PRIMARY KEY REFERENCES rounds
) STRICT;

CREATE TABLE IF NOT EXISTS registrations (
    client_id TEXT PRIMARY KEY,
    class_counts TEXT NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS counted (
    round_id INTEGER NOT NULL REFERENCES rounds,
    client_id TEXT NOT NULL,
    class_counts TEXT NOT NULL,
    PRIMARY KEY (round_id, client_id)
) STRICT;

CREATE TABLE IF NOT EXISTS bases (
    client_id TEXT PRIMARY KEY,
    sha256 TEXT NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS plain (
    client_id TEXT PRIMARY KEY
) STRICT;

CREATE TABLE IF NOT EXISTS traffic (
    client_id TEXT NOT NULL,
    round_id INTEGER NOT NULL,
    bytes_up INTEGER NOT NULL,
    bytes_down INTEGER NOT NULL,
    peak_rss_bytes INTEGER NOT NULL,
    PRIMARY KEY (client_id, round_id)
) STRICT;
"""
