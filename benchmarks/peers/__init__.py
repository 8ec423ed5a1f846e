"""How fast is plain MindSpore alone? Scripts that msrun starts, and the caller that runs them."""
