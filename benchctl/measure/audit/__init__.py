"""Reading whole answers on the target alone, and its own noise beside them."""
