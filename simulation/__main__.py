"""``python -m simulation``, which ``scripts/simulate`` runs."""

import sys

from simulation.campaign import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
