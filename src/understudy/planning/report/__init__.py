"""Plans and measurements as one HTML page with sentences, tables and plots that needs no network.

A plan's page: `plan_data`, `sentences` and `plots` feed `page`. Measurements: `chart` feeds `sheet` (HTML) and
`pictures` (PNG). `html` frames both pages.
"""
