package runstate

// commandProgram returns the argument that holds a command line and the program that it runs, where the line is a
// single plain command; an empty program: it is not. Argument is the operator's word; empty: command, or cmd.
func commandProgram(argument, arguments string) (name, program string) {
	return "", ""
}
