"""Windows as the rows of an archive, and back.

`archive_schema` declares the columns, `archive_rows` writes windows into them, `archived_windows`
makes the same windows of them again.
"""
