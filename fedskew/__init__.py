"""The workbench around the Flower app: experiments, engines, sweeps, costs, reports, exports, the command line."""
