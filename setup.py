"""Which packages are shipped and where they live; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages("src"), "understudy_bench", "understudy_bench.scripts"],
    package_dir={"": "src", "understudy_bench": "bench"},
)
