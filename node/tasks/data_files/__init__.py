"""Read an operator's data files row by row. In every format, a row is a mapping from field names to values.

- `arrow_tables`: rows of Arrow's record batches
- `delimited`: CSV and TSV files
- `formats`: recognise files of another format, for error messages
- `json_lines`: files with one JSON object per line
- `parquet`: Parquet files
- `rows`: a row, its fields by name, and the errors about it
- `saved_dataset`: directories that `save_to_disk` of Hugging Face datasets wrote
- `several_files`: a data set of several files, read as one
"""
