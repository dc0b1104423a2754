"""`chaos hunt`: planted bugs are hunted, and each must be caught.

docs/how-the-harness-is-tested.md tells who hunts, and how.
"""
