"""The round, both halves, without sockets, disks or clocks."""
