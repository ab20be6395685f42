"""An archive of `springtide.windows`: Parquet files by day, which outlive the topic.

`archive_files` knows the folder, `segment_writer` writes it, `archive_reader` reads it, and
`archiver` is the role that follows the topic.
"""
