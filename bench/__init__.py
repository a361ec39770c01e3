"""Benchmarks, side by side with what people use today; `understudy bench` runs them."""
