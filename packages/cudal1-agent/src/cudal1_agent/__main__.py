"""`python -m cudal1_agent` is the command `cudal1-agent`."""

from cudal1_agent.cli import main

if __name__ == "__main__":
    main()
