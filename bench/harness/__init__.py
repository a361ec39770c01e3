"""The parts that all benchmarks share: results and checks, jobs, processes, measurements."""
