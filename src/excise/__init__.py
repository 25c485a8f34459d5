"""Cut training samples out of a trained PyTorch model, and find the columns that carry what is known about a target.

Names are imported on first use, so that ``import excise`` is quick and loads neither torch nor scikit-learn. The file
``__init__.pyi`` beside this one says which names there are.
"""

import lazy_loader

__version__ = "0.1.0.dev0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
