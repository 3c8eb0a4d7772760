"""Files of generation 4 as tables: splits, planned from names and footers, and read into Arrow columns."""
