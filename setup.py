"""Which packages are shipped and where they live; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

bench = [f"understudy_bench.{name}" for name in find_packages("bench")]
setup(
    packages=[*find_packages("src"), "understudy_bench", *bench],
    package_dir={"": "src", "understudy_bench": "bench"},
)
