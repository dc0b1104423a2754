"""`chaos hunt`: planted bugs are hunted in three ways, and each must be caught.

docs/how-the-harness-is-tested.md tells the method.
"""
