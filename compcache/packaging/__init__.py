"""Kernels in wheels: build hooks for setuptools and hatchling that compile kernels into package data."""
