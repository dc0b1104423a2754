"""`chaos hunt`: planted bugs are hunted by the explorer and by scenarios, and each must be caught.

docs/how-the-harness-is-tested.md tells the method.
"""
