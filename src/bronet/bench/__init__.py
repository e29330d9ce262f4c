"""How fast this machine trains and evaluates: a recipe's network; layers and networks beside plain torch and others."""
