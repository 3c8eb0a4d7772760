"""``python -m penstock.testing.simulation --seed 17``: live through one seed and say what came of it."""

from penstock.testing.simulation.campaign import replay

if __name__ == "__main__":
    raise SystemExit(replay())
