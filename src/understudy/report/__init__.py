"""A plan as one page that a person reads without any network: sentences, tables and interactive plots. Pure."""
