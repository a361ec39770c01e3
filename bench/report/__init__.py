"""From a folder of results to a page, pictures, tables and figures in the documentation."""
