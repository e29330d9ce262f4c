"""`python -m bronet`: the same as the command `bronet`."""

from bronet.cli import main

if __name__ == "__main__":
    main()
