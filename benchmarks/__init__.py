"""What FedSkew costs: each module measures one thing; `python -m benchmarks` runs them."""
