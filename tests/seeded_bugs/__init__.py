"""The test of the tests: wrong versions of the cluster, each of which some test must notice."""
