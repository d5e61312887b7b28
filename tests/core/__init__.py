"""Tests of ``heliograph.core``. A package, so that test modules here may be called as those of other folders."""
