"""``python -m excise``."""

from excise.cli import main

if __name__ == "__main__":
    main()
