"""Load on a coordinator and a broker by thousands of devices that speak the whole protocol."""
