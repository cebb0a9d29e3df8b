"""`python -m benchctl` is the same program as `benchctl`."""

from benchctl.cli.app import main

if __name__ == "__main__":
    main()
