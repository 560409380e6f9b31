"""Generated from proto/magnitude/v1 by proto/generate.py. Do not edit."""
