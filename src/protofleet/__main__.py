"""``python -m protofleet``."""

from protofleet.cli import main

if __name__ == "__main__":
    main()
