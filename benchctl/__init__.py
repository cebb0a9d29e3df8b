"""benchctl: does speculative decoding pay on your models, your engine and your machine, and is the output unchanged?"""

__version__ = "0.1.0"
