"""Types of the extension: none that Python code uses; see _instance.pyx."""
