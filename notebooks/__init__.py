"""The notebooks, as files of a package so that they are installed with it. `bench notebook RUN` runs them."""
