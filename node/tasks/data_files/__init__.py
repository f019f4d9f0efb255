"""Data files of an operator, row by row: whatever a file's format is, a row is a mapping from field names to values.

- `arrow_tables`: rows of Arrow's record batches
- `delimited`: CSV and TSV files
- `formats`: recognises files of another format, for messages
- `json_lines`: one JSON object a line
- `parquet`: Parquet files
- `rows`: a row, its fields by name, and the file that it is in
- `saved_dataset`: directories that `save_to_disk` of Hugging Face datasets wrote
- `several_files`: the parts of a divided data set, as one file
"""
