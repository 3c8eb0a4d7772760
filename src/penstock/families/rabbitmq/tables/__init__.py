"""The files as tables: splits, planned from names, sizes and headers, and read into Arrow columns."""
