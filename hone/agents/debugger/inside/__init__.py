"""What runs in the sandbox. Shipped as files, not imported by Hone; standard library, Python 3.8."""
