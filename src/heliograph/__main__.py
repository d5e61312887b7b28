"""``python -m heliograph``: the command line of this interpreter's installation, wherever its scripts are."""

from heliograph.cli.main import main

if __name__ == "__main__":
    main()
