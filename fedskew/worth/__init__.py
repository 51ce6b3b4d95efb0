"""What each site adds to a federation: the model of any coalition of sites, and Shapley values of them."""
