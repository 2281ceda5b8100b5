"""`python -m cudal1_env` is the command `cudal1-env`."""

from cudal1_env.cli import main

if __name__ == "__main__":
    main()
