"""Plans and measurements as one page that a person reads without any network: sentences, tables, plots. Pure."""
