"""Kernels in a wheel: build hooks for setuptools and hatchling that compile kernels into package data."""
