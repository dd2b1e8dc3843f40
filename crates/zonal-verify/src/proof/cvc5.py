"""Runs an SMT-LIB script from standard input with the library of cvc5, and prints what the script's commands print."""

import sys

import cvc5

solver = cvc5.Solver(cvc5.TermManager())
parser = cvc5.InputParser(solver)
parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, sys.stdin.read(), "stdin")
while not (command := parser.nextCommand()).isNull():
    print(command.invoke(solver, parser.getSymbolManager()), end="", flush=True)
